"""Jobs of a drafter's life: prepare, extract, train, export, benchmark."""
