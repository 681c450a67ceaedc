"""The MLA model: one definition for training, for the dense reference and for the paged engine."""
