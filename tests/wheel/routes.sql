CREATE DATABASE Sales
GO
USE Sales
CREATE ROUTE Stock WITH SERVICE_NAME = '//shop/Stock', ADDRESS = 'TCP://stock.example'
