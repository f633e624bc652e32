"""The probe as Triton kernels. `backend` is the way in; nothing is imported here."""
