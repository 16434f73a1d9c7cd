CREATE QUEUE [dbo].[BuildOutput];
