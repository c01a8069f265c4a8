"""End-to-end rows: run the real engine's processes under tokengap, and compare its report with their truth files."""
