"""The Grafana dashboards of the chart, as code; used by ``make generate`` only."""
