"""Tuning: candidates, measurements, and records that a build replays."""
