"""Reports of a recording: text, HTML, plots."""
