-- Three copies of a service: one route for each, with the broker id of the copy.
use Frontend
go
create route Worker1 with service_name = 'Worker', broker_instance = '11111111-1111-4111-8111-111111111111', address = 'TCP://worker1:4022'
create route Worker2 with service_name = 'Worker', broker_instance = '22222222-2222-4222-8222-222222222222', address = 'TCP://worker2:4022'
create route Worker3 with service_name = 'Worker', broker_instance = '{33333333-3333-4333-8333-333333333333}', lifetime = 3600, address = 'TCP://worker3:4022'
alter route Worker2 with address = 'TCP://worker2b:4022'
go
