"""Reports: text, page, pictures."""
