CREATE DATABASE Locator
GO
USE Locator
GO
CREATE QUEUE LookupQueue
CREATE SERVICE [SQL/ServiceBroker/BrokerConfiguration] ON QUEUE LookupQueue ([http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice])
CREATE ROUTE Lookup WITH SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = 'LOCAL'
CREATE ROUTE Broker WITH SERVICE_NAME = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker', ADDRESS = 'LOCAL'
GO
