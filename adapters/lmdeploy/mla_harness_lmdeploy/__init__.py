"""The MLA harness's adapter of LMDeploy. Importing it loads nothing."""
