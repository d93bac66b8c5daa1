"""Files of questions under a hard total: planning, sampling and answers, on any number of cores."""
