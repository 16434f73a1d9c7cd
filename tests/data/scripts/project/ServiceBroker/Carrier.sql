CREATE ROUTE [Carrier]
    WITH SERVICE_NAME = N'//carrier', ADDRESS = N'TCP://carrier:4022';
