USE Sales
GO
CREATE ROUTE Leaflets WITH SERVICE_NAME = N'//press.example/Leaflets', ADDRESS = N'TCP://press.example:4022'
GO
