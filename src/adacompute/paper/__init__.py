"""Paper: every table and figure of the paper, from recorded samples."""
