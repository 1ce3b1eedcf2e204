"""Any topic as a DataFrame, its newest record of each key, and DataFrames appended to one."""
