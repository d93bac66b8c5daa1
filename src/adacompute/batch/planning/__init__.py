"""Planning: the price at which a batch spends its total, and what each question gets first."""
