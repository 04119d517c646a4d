"""A real Prometheus on a sandbox, scraping through the monitors that the chart installs."""
