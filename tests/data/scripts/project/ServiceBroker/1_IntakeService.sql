CREATE SERVICE [//depot/Intake]
    AUTHORIZATION [depot_owner]
    ON QUEUE [dbo].[IntakeQueue]
    ([//depot/Delivery]);
