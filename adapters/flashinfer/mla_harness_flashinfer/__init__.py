"""The MLA harness's adapter of FlashInfer. Importing it loads nothing."""
