"""Input and output: reads and applies objects, scrapes Pods."""
