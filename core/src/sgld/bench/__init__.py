"""Measuring a server as its clients meet it. Torch-free.

options     what is measured, and how much of it
figures     from the times at which chunks arrived to rates and latencies
client      a session of protocol 2 that knows when what arrived
realtime    the sessions that are measured
own_server  a server for the time of the measurement
model_facts what a server tells of its model
machine     the conditions: processor, load, memory of processes
shown       the table
"""
