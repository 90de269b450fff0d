"""Problems as typed values, and what only their gold knows: accepted answers and gold documents."""
