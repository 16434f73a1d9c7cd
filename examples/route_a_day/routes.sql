/* The routing configuration of one SQL Server instance of a web shop, written by its administrators.

   Sales, Billing, Warehouse and Shipping are in use. Archive is being moved, and its broker is disabled.
   The services for stock and labels have copies on other instances. The server of the finance department is mirrored. */
USE master
GO
CREATE ENDPOINT BrokerEndpoint
    STATE = STARTED
    AS TCP (LISTENER_PORT = 4022, LISTENER_IP = (10.20.0.11))
    FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS, ENCRYPTION = REQUIRED ALGORITHM AES, MESSAGE_FORWARDING = ENABLED)
GO
CREATE DATABASE Sales      -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001
CREATE DATABASE Billing    -- ssbroker: service_broker_guid=b1111000-0000-4000-8000-000000000002
CREATE DATABASE Warehouse  -- ssbroker: service_broker_guid=570c4000-0000-4000-8000-000000000003
CREATE DATABASE Shipping   -- ssbroker: service_broker_guid=54195000-0000-4000-8000-000000000004
CREATE DATABASE Archive    -- ssbroker: service_broker_guid=a4c41000-0000-4000-8000-000000000005
GO
ALTER DATABASE Archive SET DISABLE_BROKER
GO

---------------------------------------------------------------- Sales
USE Sales
GO
CREATE QUEUE dbo.OrderQueue
CREATE QUEUE dbo.ReturnQueue
CREATE SERVICE [//shop.example/Sales/Orders] ON QUEUE dbo.OrderQueue ([DEFAULT])
CREATE SERVICE [//shop.example/Sales/Returns] ON QUEUE dbo.ReturnQueue ([DEFAULT])
GO
-- This instance issues invoices. The route to the old server has expired and remains until finance approves its removal.
CREATE ROUTE InvoicesHere WITH SERVICE_NAME = N'//shop.example/Billing/Invoices', ADDRESS = N'LOCAL'
CREATE ROUTE InvoicesOld WITH SERVICE_NAME = N'//shop.example/Billing/Invoices', LIFETIME = 3600, ADDRESS = N'TCP://old-billing.shop.example:4022'
CREATE ROUTE InvoicesMisspelt WITH SERVICE_NAME = N'//shop.example/billing/invoices', ADDRESS = N'TCP://old-billing.shop.example:4022'
CREATE ROUTE Payments WITH SERVICE_NAME = N'//shop.example/Billing/Payments', ADDRESS = N'LOCAL'
-- Three copies of the stock service share the load. A conversation with a broker id stays with its copy.
CREATE ROUTE StockNorth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E314', ADDRESS = N'TCP://stock-north.shop.example:4022'
CREATE ROUTE StockSouth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E315', ADDRESS = N'TCP://stock-south.shop.example:4022'
CREATE ROUTE StockWest WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E316', ADDRESS = N'TCP://stock-west.shop.example:4022'
CREATE ROUTE StockWestSpare WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E316', ADDRESS = N'TCP://stock-west-2.shop.example:4022'
-- Two equivalent gateways to the card company.
CREATE ROUTE CardsA WITH SERVICE_NAME = N'//cards.example/Authorise', ADDRESS = N'TCP://gateway-a.cards.example:4022'
CREATE ROUTE CardsB WITH SERVICE_NAME = N'//cards.example/Authorise', ADDRESS = N'TCP://gateway-b.cards.example:4022'
CREATE ROUTE CardsAByName WITH SERVICE_NAME = N'//cards.example/Authorise', ADDRESS = N'tcp://GATEWAY-A.cards.example:4022/'
CREATE ROUTE Refunds WITH SERVICE_NAME = N'//cards.example/Refund', ADDRESS = N'TCP://gateway-a.cards.example:4022'
CREATE ROUTE Ledger WITH SERVICE_NAME = N'//finance.example/Ledger', BROKER_INSTANCE = N'F1A4CE00-1111-4222-8333-000000000001',
    ADDRESS = N'TCP://ledger-1.finance.example:4022', MIRROR_ADDRESS = N'TCP://ledger-2.finance.example:4022'
CREATE ROUTE Tax WITH SERVICE_NAME = N'//finance.example/Tax', ADDRESS = N'TCP://tax.finance.example:4022'
CREATE ROUTE Mail WITH SERVICE_NAME = N'//mail.example/Send', ADDRESS = N'TCP://mail.example'
CREATE ROUTE Newsletter WITH SERVICE_NAME = N'//mail.example/Newsletter', LIFETIME = 1800, ADDRESS = N'TCP://mail.example'
CREATE ROUTE Search WITH SERVICE_NAME = N'//search.example/Index', ADDRESS = N'TCP://search.example:4023'
CREATE ROUTE Labels WITH SERVICE_NAME = N'//shop.example/Shipping/Labels', ADDRESS = N'TCP://10.20.0.11:4022'
CREATE ROUTE Suppliers WITH SERVICE_NAME = N'//suppliers.example/Offers', ADDRESS = N'TCP://edge.shop.example:4022'
GO

---------------------------------------------------------------- Billing
USE Billing
GO
CREATE QUEUE dbo.InvoiceQueue
CREATE QUEUE dbo.PaymentQueue
CREATE SERVICE [//shop.example/Billing/Invoices] ON QUEUE dbo.InvoiceQueue ([DEFAULT])
CREATE SERVICE [//shop.example/Billing/Payments] ON QUEUE dbo.PaymentQueue ([DEFAULT])
GO
DROP ROUTE AutoCreatedLocal   -- conversations leave Billing only by the routes below
CREATE ROUTE Orders WITH SERVICE_NAME = N'//shop.example/Sales/Orders', ADDRESS = N'LOCAL'
CREATE ROUTE Returns WITH SERVICE_NAME = N'//shop.example/Sales/Returns', ADDRESS = N'LOCAL'
CREATE ROUTE Ledger WITH SERVICE_NAME = N'//finance.example/Ledger', BROKER_INSTANCE = N'F1A4CE00-1111-4222-8333-000000000001',
    ADDRESS = N'TCP://ledger-1.finance.example:4022', MIRROR_ADDRESS = N'TCP://ledger-2.finance.example:4022'
CREATE ROUTE Tax WITH SERVICE_NAME = N'//finance.example/Tax', ADDRESS = N'TCP://tax.finance.example:4022'
CREATE ROUTE Cards WITH SERVICE_NAME = N'//cards.example/Refund', ADDRESS = N'TCP://gateway-b.cards.example:4022'
CREATE ROUTE BankA WITH SERVICE_NAME = N'//bank.example/Transfers', BROKER_INSTANCE = N'BA4C0000-0000-4000-8000-00000000000A', ADDRESS = N'TCP://a.bank.example:4022'
CREATE ROUTE BankB WITH SERVICE_NAME = N'//bank.example/Transfers', BROKER_INSTANCE = N'BA4C0000-0000-4000-8000-00000000000B', ADDRESS = N'TCP://b.bank.example:4022'
CREATE ROUTE Dunning WITH SERVICE_NAME = N'//letters.example/Dunning', ADDRESS = N'TCP://letters.example:4022'
CREATE ROUTE [Print] WITH SERVICE_NAME = N'//letters.example/Print', LIFETIME = 7200, ADDRESS = N'TCP://letters.example:4022'
GO
ALTER ROUTE [Print] WITH LIFETIME = 604800   -- the contract was extended by a week
GO

---------------------------------------------------------------- Warehouse
USE Warehouse
GO
CREATE QUEUE dbo.StockQueue
CREATE QUEUE dbo.ConfigurationQueue
CREATE SERVICE [//shop.example/Warehouse/Stock] ON QUEUE dbo.StockQueue ([DEFAULT])
CREATE SERVICE [SQL/ServiceBroker/BrokerConfiguration] ON QUEUE dbo.ConfigurationQueue
    ([http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice])
GO
-- Carriers change often. If a carrier has no route, the conversation waits while the instance requests one.
CREATE ROUTE Configuration WITH SERVICE_NAME = N'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = N'LOCAL'
CREATE ROUTE Labels WITH SERVICE_NAME = N'//shop.example/Shipping/Labels', ADDRESS = N'LOCAL'
CREATE ROUTE LabelsCopy WITH SERVICE_NAME = N'//shop.example/Shipping/Labels', ADDRESS = N'TCP://labels.shop.example:4022'
CREATE ROUTE Orders WITH SERVICE_NAME = N'//shop.example/Sales/Orders', ADDRESS = N'LOCAL'
CREATE ROUTE StockNorth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E314', ADDRESS = N'TCP://stock-north.shop.example:4022'
CREATE ROUTE StockSouth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E315', ADDRESS = N'TCP://stock-south.shop.example:4022'
CREATE ROUTE Counting WITH SERVICE_NAME = N'//robots.example/Count', ADDRESS = N'TCP://robots.example:4022'
CREATE ROUTE Picking WITH SERVICE_NAME = N'//robots.example/Pick', ADDRESS = N'TCP://robots.example:4022'
CREATE ROUTE CarrierBlue WITH SERVICE_NAME = N'//blue.example/Pickup', LIFETIME = 86400, ADDRESS = N'TCP://edi.blue.example:4022'
CREATE ROUTE CarrierGreen WITH SERVICE_NAME = N'//green.example/Pickup', LIFETIME = 600, ADDRESS = N'TCP://edi.green.example:4022'
GO

---------------------------------------------------------------- Shipping
USE Shipping
GO
CREATE QUEUE dbo.LabelQueue
CREATE SERVICE [//shop.example/Shipping/Labels] ON QUEUE dbo.LabelQueue ([DEFAULT])
GO
ALTER ROUTE AutoCreatedLocal WITH ADDRESS = N'TRANSPORT'   -- services whose names contain an address need no route
CREATE ROUTE Orders WITH SERVICE_NAME = N'//shop.example/Sales/Orders', ADDRESS = N'LOCAL'
CREATE ROUTE CarrierBlue WITH SERVICE_NAME = N'//blue.example/Pickup', ADDRESS = N'TCP://edi.blue.example:4022'
CREATE ROUTE CarrierRed WITH SERVICE_NAME = N'//red.example/Pickup', ADDRESS = N'TCP://edi.red.example:4022'
CREATE ROUTE CarrierRedNight WITH SERVICE_NAME = N'//red.example/Pickup', ADDRESS = N'TCP://night.red.example:4022'
CREATE ROUTE Customs WITH SERVICE_NAME = N'//customs.example/Declare', BROKER_INSTANCE = N'C0570000-0000-4000-8000-000000000001', ADDRESS = N'TCP://declare.customs.example:4022'
CREATE ROUTE Tracking WITH SERVICE_NAME = N'//tracking.example/Events', ADDRESS = N'TCP://[2001:db8::17]:4022'
GO

---------------------------------------------------------------- Archive
USE Archive
GO
CREATE ROUTE ColdStore WITH SERVICE_NAME = N'//archive.example/Store', ADDRESS = N'TCP://archive.example:4022'
GO

---------------------------------------------------------------- messages from other instances
USE msdb
GO
DROP ROUTE AutoCreatedLocal   -- other instances may reach only the services below
CREATE ROUTE Orders WITH SERVICE_NAME = N'//shop.example/Sales/Orders', ADDRESS = N'LOCAL'
CREATE ROUTE Returns WITH SERVICE_NAME = N'//shop.example/Sales/Returns', ADDRESS = N'LOCAL'
CREATE ROUTE Payments WITH SERVICE_NAME = N'//shop.example/Billing/Payments', ADDRESS = N'LOCAL'
CREATE ROUTE Labels WITH SERVICE_NAME = N'//shop.example/Shipping/Labels', ADDRESS = N'LOCAL'
CREATE ROUTE Stock WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', ADDRESS = N'LOCAL'
CREATE ROUTE StockNorth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E314', ADDRESS = N'TCP://stock-north.shop.example:4022'
CREATE ROUTE StockSouth WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E315', ADDRESS = N'TCP://stock-south.shop.example:4022'
CREATE ROUTE StockWest WITH SERVICE_NAME = N'//shop.example/Warehouse/Stock', BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E316', ADDRESS = N'TCP://stock-west.shop.example:4022'
CREATE ROUTE Reports WITH SERVICE_NAME = N'//reports.example/Daily', ADDRESS = N'TCP://reports.example:4022'
CREATE ROUTE ReportsCopy WITH SERVICE_NAME = N'//reports.example/Daily', ADDRESS = N'TCP://reports-2.example:4022'
CREATE ROUTE Partner WITH SERVICE_NAME = N'//partner.example/Catalogue', ADDRESS = N'TCP://partner.example:4022'
CREATE ROUTE Closed WITH SERVICE_NAME = N'//shop.example/Archive/Read', ADDRESS = N'LOCAL'
CREATE ROUTE Boomerang WITH SERVICE_NAME = N'//shop.example/Sales/Quotes', ADDRESS = N'TCP://10.20.0.11:4022'
GO
