"""Columns of Arrow: types that fit a role, ids and numbers without a guess, filters, files written as a whole."""
