"""The paper's boxes: Actor, Data Collector, Learner, Parameter Server; and the Evaluator."""
