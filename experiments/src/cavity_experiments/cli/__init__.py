"""The commands `cavity reproduce`, `cavity bench` and `cavity data`."""
