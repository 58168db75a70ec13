"""What people see: charts, the panel and the offline report."""
