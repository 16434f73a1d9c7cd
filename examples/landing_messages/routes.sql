/* The instance that receives the messages of a chain of shops: two databases, and routes to other companies. */
CREATE DATABASE Sales      -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001
CREATE DATABASE Warehouse  -- ssbroker: service_broker_guid=570c4000-0000-4000-8000-000000000003
GO
USE Sales
GO
CREATE QUEUE OrderQueue
CREATE QUEUE ReturnQueue
CREATE SERVICE [//chain.example/Orders] ON QUEUE OrderQueue
CREATE SERVICE [//chain.example/Returns] ON QUEUE ReturnQueue
CREATE ROUTE Cards WITH SERVICE_NAME = N'//cards.example/Authorise', ADDRESS = N'TCP://cards.example:4022'
GO
USE Warehouse
GO
CREATE QUEUE StockQueue
CREATE SERVICE [//chain.example/Stock] ON QUEUE StockQueue
GO
