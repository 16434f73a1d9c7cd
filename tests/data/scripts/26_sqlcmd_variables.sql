:setvar Db Tickets
:setvar Host "tickets-$(Stage).example"
CREATE DATABASE [$(Db)_$(Stage)]
GO
USE $(Db)_$(Stage)
GO
CREATE QUEUE $(Db)Queue
CREATE SERVICE [//$(Stage)/$(Db)] ON QUEUE $(Db)Queue ([DEFAULT])
CREATE ROUTE Peer WITH SERVICE_NAME = '//$(Stage)/Peer', ADDRESS = 'TCP://$(Host):$(Port)'
:r parts/more_routes.inc
GO
-- $(Undefined) in a comment is no variable
