CREATE DATABASE Import
GO
USE Import
GO
IF OBJECT_ID('dbo.Settings', 'U') IS NULL
BEGIN
    CREATE TABLE dbo.Settings (Name sysname, Value nvarchar(200))
    CREATE QUEUE dbo.SettingsChanged
END
GO
IF OBJECT_ID('dbo.Settings', 'U') IS NULL
    CREATE QUEUE dbo.NotAgain
ELSE
    CREATE SERVICE SettingsService ON QUEUE dbo.SettingsChanged
GO
IF EXISTS (SELECT * FROM sys.objects WHERE name = 'SettingsChanged' AND type = 'SQ')
    ALTER QUEUE dbo.SettingsChanged WITH STATUS = OFF
GO
