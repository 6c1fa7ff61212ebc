"""The paper's boxes: Actor, Data Collector, Learner, Parameter Server; the Evaluator beside them."""
