"""Research: the stages of `adacompute research`, some of which other stages run too."""
