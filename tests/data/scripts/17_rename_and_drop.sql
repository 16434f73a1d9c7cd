create database Draft
go
create database Scratch
go
use Draft
create queue Q
create service [//draft/S] on queue Q ([DEFAULT])
go
use Scratch
create queue Gone
go
use master
alter database draft modify name = Final
drop database SCRATCH
drop database if exists Never
go
use FINAL
create route Out with service_name = '//out', address = 'TCP://out:4022'
go
