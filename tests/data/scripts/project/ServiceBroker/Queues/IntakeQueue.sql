CREATE QUEUE [dbo].[IntakeQueue];
