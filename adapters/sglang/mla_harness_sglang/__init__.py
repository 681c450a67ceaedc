"""The MLA harness's adapter of SGLang. Importing it loads nothing."""
