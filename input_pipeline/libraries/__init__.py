"""Readers for what other libraries call a dataset or a loader. None of these is imported here: a
library is looked at only once the user has imported it."""
