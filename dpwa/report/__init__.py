"""Reports of runs for people: pages with pictures, and comparisons of several runs."""
