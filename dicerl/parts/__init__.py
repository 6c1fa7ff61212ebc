"""The paper's boxes: Actor, Data Collector, Learner, Parameter Server; beside them the Evaluator."""
