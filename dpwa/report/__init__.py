"""What came of a run, for people: pages with pictures, and comparisons of several runs."""
