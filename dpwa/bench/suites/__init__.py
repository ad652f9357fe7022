"""What each benchmark measures, one file for each."""
