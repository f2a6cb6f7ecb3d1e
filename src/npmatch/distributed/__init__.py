"""The processes of a run on one machine or many: who is who, tensors that cross them, devices."""
