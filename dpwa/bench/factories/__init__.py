"""Builds the measures of each benchmark, one file for each."""
