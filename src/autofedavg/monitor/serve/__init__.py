"""The report in a browser, kept up to date while runs go on."""
