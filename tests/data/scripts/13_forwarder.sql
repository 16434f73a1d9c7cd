-- A hub has no services of its own. Names of rules follow the direction.
USE msdb;
DROP ROUTE AutoCreatedLocal;
CREATE ROUTE Northward WITH SERVICE_NAME = N'//north/Orders', ADDRESS = N'TCP://north.example:4022';
CREATE ROUTE Southward WITH SERVICE_NAME = N'//south/Orders', ADDRESS = N'TCP://south.example:4022';
GO
USE master;
CREATE ENDPOINT HubEndpoint STATE = STARTED
    AS TCP (LISTENER_PORT = 4037, LISTENER_IP = ('fe80::10'))
    FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS KERBEROS, MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = 50);
GO
