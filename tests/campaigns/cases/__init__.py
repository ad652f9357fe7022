"""What the campaigns in virtual time do with one seed each."""
