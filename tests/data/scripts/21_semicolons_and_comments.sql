/* nested /* comment */ with CREATE ROUTE x */
CREATE DATABASE [It's "quoted"];;
GO -- a comment after the separator
USE [It's "quoted"];
CREATE QUEUE [a ]] b]; CREATE SERVICE [//semi;colon] ON QUEUE [a ]] b] ([DEFAULT]);
PRINT 'GO
';
CREATE /* in the middle */ ROUTE "R ""1""" WITH -- clauses
    ADDRESS = 'TCP://one:4022' , SERVICE_NAME = 'It''s';
GO
