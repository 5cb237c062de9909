"""The supervisor behind `redraft up`: every part of a deployment on one machine, kept alive."""
