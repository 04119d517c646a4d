"""Pure decisions: from a spec and what is observed to desired objects and a status."""
