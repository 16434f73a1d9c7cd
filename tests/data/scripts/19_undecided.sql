USE Stock
GO
IF SERVERPROPERTY('EngineEdition') = 8
    CREATE ROUTE Managed WITH SERVICE_NAME = '//m', ADDRESS = 'TCP://managed:4022'
GO
DECLARE @n int = 1
WHILE @n <= 3
BEGIN
    DECLARE @sql nvarchar(max) = N'CREATE ROUTE R' + CAST(@n AS nvarchar(10)) + N' WITH ADDRESS = ''LOCAL'''
    EXEC (@sql)
    SET @n += 1
END
GO
DECLARE @address nvarchar(256)
SELECT @address = Value FROM dbo.Settings WHERE Name = 'PartnerAddress'
DECLARE @create nvarchar(max) = N'CREATE ROUTE Partner WITH ADDRESS = ''' + @address + N''''
EXEC (@create)
GO
CREATE ROUTE Known WITH SERVICE_NAME = '//known', ADDRESS = 'TCP://known:4022'
GO
