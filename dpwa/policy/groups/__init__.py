"""Views of a group, and how its nodes agree on the next one."""
