USE Sales
GO
CREATE ROUTE Ledger
    WITH SERVICE_NAME = N'//ledger',
         BROKER_INSTANCE = N'4F7F8A76-8C2B-4B5F-9D43-7A2E01C5D901',
         ADDRESS = N'TCP://ledger-a.example:4022',
         MIRROR_ADDRESS = N'TCP://ledger-b.example:4022'
GO
