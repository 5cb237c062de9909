"""Make a draft from a target: cut some of its layers out, and heal the cut on the target's own answers."""
